--! include profiles
--! include rooms
--! include turns
-- Each profile has heads: the queues and lanes that it can run, at the score of their first task. So a claim never meets
-- a lane that it must skip, and its cost does not depend on tasks that its worker cannot run.
--
-- Lanes that pass a limited gate are grouped behind it. The group stands among the lanes, at the score of its first task,
-- while the gate has room: a gate that closes removes one entry, however many lanes wait behind it. A lane is in one
-- group only; a claim that finds another of its gates closed moves the lane there.
local has_refill = false  -- whether this call recorded a refill
local function record_refill(g, at)
  has_refill = has_refill or at ~= nil
  if at then redis.call('ZADD', REFILLS, whole(at), g) end
end

-- Puts a queue at the score of its first lane, or removes it when it is empty, paused or without room. `room` and `at` are those
-- of the queue, if the caller has read them. A fair queue whose first entry has had its turn stands at the start of its band, so
-- that a claim looks whose turn it is.
local function refresh_queue(p, q, room, at)
  local entry, score = first_of(queue_heads_key(p, q))
  if entry and not room then room, at = queue_room(q) end
  if entry and room > 0 then
    if queue_policy(q).fair then
      local who, g = split_entry(entry)
      local band = math.floor(tonumber(score) / 1e13)
      local is_next = tonumber(score) >= band * 1e13 + turn_of(q, band, who)
      score = is_next and select(2, first_of(turn_key(p, q, g, who))) or exact(band * 1e13)
    end
    redis.call('ZADD', heads_key(p), score, q)
  else
    redis.call('ZREM', heads_key(p), q)
    record_refill('q:' .. q, entry and at)
  end
end

local function refresh_queue_everywhere(q)
  local room, at = queue_room(q)
  for _, p in ipairs(profiles()) do refresh_queue(p, q, room, at) end
end

-- Puts a group at the score of its first lane, or removes it when it is empty or its gate is closed.
local function refresh_group(p, q, g)
  local entry, score = first_of(group_key(p, q, g))
  local room, at = 0, nil
  if entry then
    if redis.call('SADD', spots_key(g), p .. '\31' .. q) == 1 then redis.call('SADD', GATES, g) end
    room, at = gate_room(g)
  elseif redis.call('SREM', spots_key(g), p .. '\31' .. q) == 1 and redis.call('EXISTS', spots_key(g)) == 0 then
    redis.call('SREM', GATES, g)
  end
  record_refill(g, at)
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

local touched = {}  -- profile -> queue -> gate -> true: refresh_touched() looks at each once
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

-- Marks the groups behind a gate whose room has changed; not of profiles that a rebuild is about to forget.
local function refresh_gate(g)
  for _, spot in ipairs(redis.call('SMEMBERS', spots_key(g))) do
    local p, q = string.match(spot, '^([^\31]*)\31(.*)$')
    if is_registered(p) then touch(p, q, g) end
  end
end
