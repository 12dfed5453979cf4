-- A profile is what a worker can run: queues, task types, capabilities, slots; workers that
-- are alike share one. Each profile has its own heads: the queues and lanes that it can run,
-- by the score of their first task. A claim therefore never meets a lane that it must skip,
-- and its cost does not depend on what nobody, or somebody else, can run.
--
-- Lanes that pass a gate are grouped behind it, and the group stands among the lanes, at the
-- score of its first, for as long as the gate has room. So a gate that closes takes one entry
-- out, however many lanes wait behind it, and puts one in when it opens. A lane is in one
-- place only: it moves when a claim meets it and finds another of its gates closed.
--
-- In a fair queue the entries are not lanes but those who take turns, each with its lanes in
-- a list of its own; their score is band * 10^13 + turn.
local profile_ids
local function profiles()
  profile_ids = profile_ids or redis.call('SMEMBERS', PROFILES)
  return profile_ids
end

local function runs(p, lane)
  local q, task_type, capabilities, _, _, weight = split_lane(lane)
  if redis.call('SISMEMBER', profile_key(p, 'types'), task_type) == 0 then return false end
  if redis.call('SCARD', profile_key(p, 'queues')) > 0
      and redis.call('SISMEMBER', profile_key(p, 'queues'), q) == 0 then
    return false
  end
  for capability in string.gmatch(capabilities, '[^,]+') do
    if redis.call('SISMEMBER', profile_key(p, 'capabilities'), capability) == 0 then return false end
  end
  if weight > 1 then
    local slots = tonumber(redis.call('GET', profile_key(p, 'slots')) or nil)
    if slots and slots < weight then return false end
  end
  return true
end

local matched = {}  -- queue, type, capabilities, weight -> profiles that can run it, for the length of one call
local function profiles_for(lane)
  local q, task_type, capabilities, _, _, weight = split_lane(lane)
  local asked = q .. '\31' .. task_type .. '\31' .. capabilities .. '\31' .. weight
  if not matched[asked] then
    local able = {}
    for _, p in ipairs(profiles()) do
      if runs(p, lane) then able[#able + 1] = p end
    end
    matched[asked] = able
  end
  return matched[asked]
end

local function list_key(p, q, g)
  return g == '' and queue_heads_key(p, q) or group_key(p, q, g)
end

local function split_entry(entry) return string.match(entry, '^([^\30]*)\30(.*)$') end

-- When somebody has its turn in a fair queue: where its last one ended, or now.
local NOW = '\30'  -- the turn that was taken last stands under this name
local turns = {}  -- key -> who -> turn, for the length of one call
local function turns_in(key)
  turns[key] = turns[key] or { [NOW] = tonumber(redis.call('ZSCORE', key, NOW) or nil) or 0 }
  return turns[key]
end
local function turn_of(q, band, who)
  local key = turns_key(q, band)
  local known = turns_in(key)
  if not known[who] then known[who] = tonumber(redis.call('ZSCORE', key, who) or nil) or 0 end
  return math.max(known[NOW], known[who])
end

-- Notes who has its next turn when, and forgets those whose turn is past: they are as new.
local function set_turns(q, band, taken)
  local key, args = turns_key(q, band), {}
  local known = turns_in(key)
  for who, at in pairs(taken) do
    known[who] = at
    args[#args + 1] = exact(at)
    args[#args + 1] = who
  end
  redis.call('ZADD', key, unpack(args))
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. exact(taken[NOW]))
end

local awaits = false  -- whether this call noted a refill
local function await(g, at)
  awaits = awaits or at ~= nil
  if at then redis.call('ZADD', REFILLS, string.format('%.0f', at), g) end
end

local function first(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return found[1], found[2]
end

-- Puts a queue where its first lane stands, or takes it out: empty, paused or without room.
local function refresh_queue(p, q)
  local entry, score = first(queue_heads_key(p, q))
  local room, at = 0, nil
  if entry then room, at = queue_room(q) end
  if room > 0 then
    if queue_policy(q).fair then
      local who, g = split_entry(entry)
      score = select(2, first(turn_key(p, q, g, who)))
    end
    redis.call('ZADD', heads_key(p), score, q)
  else
    redis.call('ZREM', heads_key(p), q)
    await('q:' .. q, at)
  end
end

local function refresh_queue_everywhere(q)
  for _, p in ipairs(profiles()) do refresh_queue(p, q) end
end

-- Puts a group where its first lane stands, or takes it out: empty, or its gate is closed.
local function refresh_group(p, q, g)
  local entry, score = first(group_key(p, q, g))
  local room, at = 0, nil
  if entry then
    if redis.call('SADD', spots_key(g), p .. '\31' .. q) == 1 then redis.call('SADD', GATES, g) end
    room, at = gate_room(g)
  elseif redis.call('SREM', spots_key(g), p .. '\31' .. q) == 1 and redis.call('EXISTS', spots_key(g)) == 0 then
    redis.call('SREM', GATES, g)
  end
  await(g, at)
  local member = room > 0 and (queue_policy(q).fair and entry .. g or '\30' .. g) or nil
  if queue_policy(q).fair then
    local old = redis.call('HGET', nodes_key(p, q), g)
    if old and old ~= member then
      redis.call('ZREM', queue_heads_key(p, q), old)
      redis.call('HDEL', nodes_key(p, q), g)
    end
    if member then redis.call('HSET', nodes_key(p, q), g, member) end
  elseif not member then
    redis.call('ZREM', queue_heads_key(p, q), '\30' .. g)
  end
  if member then redis.call('ZADD', queue_heads_key(p, q), score, member) end
end

-- Puts somebody in a fair queue where its turn is, among those of its group.
local function refresh_turn(p, q, g, who)
  local lane, score = first(turn_key(p, q, g, who))
  if lane then
    local band = math.floor(tonumber(score) / 1e13)
    redis.call('ZADD', list_key(p, q, g), exact(band * 1e13 + turn_of(q, band, who)), who .. '\30')
  else
    redis.call('ZREM', list_key(p, q, g), who .. '\30')
  end
end

local touched = {}  -- profile -> queue -> gate -> true: left to refresh_touched(), so that each is looked at once
local function touch(p, q, g)
  touched[p] = touched[p] or {}
  touched[p][q] = touched[p][q] or {}
  if g ~= '' then touched[p][q][g] = true end
end

local function refresh_touched()
  for p, queues in pairs(touched) do
    for q, gates in pairs(queues) do
      for g in pairs(gates) do refresh_group(p, q, g) end
      refresh_queue(p, q)
    end
  end
  touched = {}
end

-- Shows or hides the groups behind a gate whose room has changed.
local function refresh_gate(g)
  for _, spot in ipairs(redis.call('SMEMBERS', spots_key(g))) do
    local p, q = string.match(spot, '^([^\31]*)\31(.*)$')
    touch(p, q, g)
  end
end

local function put(p, q, g, lane, score)
  local fair = queue_policy(q).fair
  if not fair then
    redis.call('ZADD', list_key(p, q, g), score, lane)
  else
    local who = turner(fair, lane)
    redis.call('ZADD', turn_key(p, q, g, who), score, lane)
    refresh_turn(p, q, g, who)
  end
  touch(p, q, g)
end

local function drop(p, q, g, lane)
  local fair = queue_policy(q).fair
  if not fair then
    redis.call('ZREM', list_key(p, q, g), lane)
  else
    local who = turner(fair, lane)
    redis.call('ZREM', turn_key(p, q, g, who), lane)
    refresh_turn(p, q, g, who)
  end
  touch(p, q, g)
end

local has_groups = {}  -- profile -> whether any of its lanes is grouped
local function gate_of(p, lane)
  if not global_policy()[3] then return '' end
  if has_groups[p] == nil then has_groups[p] = redis.call('EXISTS', at_key(p)) == 1 end
  return has_groups[p] and redis.call('HGET', at_key(p), lane) or ''
end

local function group(p, q, lane, from, g)
  drop(p, q, from, lane)
  redis.call('HSET', at_key(p), lane, g)
  has_groups[p] = true
end

-- Puts a lane where its first task stands, for one profile that can run it. Those of a type
-- or key that has limits are grouped from the start; those of a user, when it has no room.
local function stand(p, lane, score)
  local q = split_lane(lane)
  local g = gate_of(p, lane)
  if not score then
    drop(p, q, g, lane)
    if g ~= '' then redis.call('HDEL', at_key(p), lane) end
    return
  end
  local gates = gates_of(lane)
  if g == '' and gates[1] and string.sub(gates[1], 1, 1) ~= 'u' then
    group(p, q, lane, g, gates[1])
    g = gates[1]
  end
  put(p, q, g, lane, score)
end

-- Puts a lane where its first task stands, for every profile that can run it.
local function refresh_lane(lane)
  local q = split_lane(lane)
  local id, score = first(lane_key(lane))
  if not id then redis.call('SREM', lanes_key(q), lane) end
  for _, p in ipairs(profiles_for(lane)) do stand(p, lane, score) end
end

-- Forgets leases at the gates that they passed; returns those gates that were full. The caller frees the queue's.
local function let_pass(ids)
  if not getmetatable(limits()) then return {} end
  local gone, opened = {}, {}
  for i, lane in ipairs(redis.call('HMGET', LEASES, unpack(ids))) do
    for _, g in ipairs(lane and gates_of(lane) or {}) do
      gone[g] = gone[g] or {}
      table.insert(gone[g], ids[i])
    end
  end
  for g, members in pairs(gone) do
    local n, cap = redis.call('SREM', held_key(g), unpack(members)), tonumber(gate_policy(g).cap or nil)
    if n > 0 and cap and redis.call('SCARD', held_key(g)) + n >= cap then opened[g] = true end
  end
  return opened
end
