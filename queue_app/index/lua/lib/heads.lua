-- A profile is what a worker can run: queues, task types, capabilities; workers that are
-- alike share one. Each profile has its own heads: the queues and lanes that it can run, by
-- the score of their first task. A claim therefore never meets a lane that it must skip,
-- and its cost does not depend on what nobody, or somebody else, can run.
local profile_ids
local function profiles()
  profile_ids = profile_ids or redis.call('SMEMBERS', PROFILES)
  return profile_ids
end

local function split_lane(lane)
  return string.match(lane, '^([^\31]*)\31([^\31]*)\31(.*)$')
end

local function runs(p, q, task_type, capabilities)
  if redis.call('SISMEMBER', profile_key(p, 'types'), task_type) == 0 then return false end
  if redis.call('SCARD', profile_key(p, 'queues')) > 0
      and redis.call('SISMEMBER', profile_key(p, 'queues'), q) == 0 then
    return false
  end
  for capability in string.gmatch(capabilities, '[^,]+') do
    if redis.call('SISMEMBER', profile_key(p, 'capabilities'), capability) == 0 then return false end
  end
  return true
end

local matched = {}  -- lane -> profiles that can run it, for the length of one call
local function profiles_for(lane)
  if not matched[lane] then
    local q, task_type, capabilities = split_lane(lane)
    local able = {}
    for _, p in ipairs(profiles()) do
      if runs(p, q, task_type, capabilities) then able[#able + 1] = p end
    end
    matched[lane] = able
  end
  return matched[lane]
end

-- Puts a queue where its first lane stands, or takes it out: empty, paused or at its cap.
local function refresh_queue(p, q)
  local head = redis.call('ZRANGE', queue_heads_key(p, q), 0, 0, 'WITHSCORES')
  if head[1] and queue_room(q) > 0 then
    redis.call('ZADD', heads_key(p), head[2], q)
  else
    redis.call('ZREM', heads_key(p), q)
  end
end

local function refresh_queue_everywhere(q)
  for _, p in ipairs(profiles()) do refresh_queue(p, q) end
end

-- Puts a lane where its first task stands, for every profile that can run it.
-- Queues are left to refresh_touched(), so that each is looked at once.
local touched = {}
local function refresh_lane(lane)
  local q = split_lane(lane)
  local head = redis.call('ZRANGE', lane_key(lane), 0, 0, 'WITHSCORES')
  if not head[1] then redis.call('SREM', lanes_key(q), lane) end
  for _, p in ipairs(profiles_for(lane)) do
    if head[1] then
      redis.call('ZADD', queue_heads_key(p, q), head[2], lane)
    else
      redis.call('ZREM', queue_heads_key(p, q), lane)
    end
    touched[p] = touched[p] or {}
    touched[p][q] = true
  end
end

local function refresh_touched()
  for p, queues in pairs(touched) do
    for q in pairs(queues) do refresh_queue(p, q) end
  end
  touched = {}
end
