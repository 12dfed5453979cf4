-- Forgets a worker; its profile goes with the last worker that has it.
--
-- ARGV[1]  profile    ARGV[2]  worker id
-- Returns  1 when the profile was forgotten too, else 0
--! include wake
local profile, worker = ARGV[1], ARGV[2]
local must_wake = redis.call('LLEN', wake_key(worker)) > 0
redis.call('ZREM', idle_key(profile), worker)
redis.call('ZREM', short_key(profile), worker)
redis.call('HDEL', GENERATION, 'w:' .. worker)
end_reservations(worker)
redis.call('DEL', wake_key(worker))
redis.call('SREM', profile_key(profile, 'workers'), worker)
local is_last = redis.call('SCARD', profile_key(profile, 'workers')) == 0
if is_last then
  redis.call('SREM', PROFILES, profile)
  local function forget_list(q, g)
    if queue_policy(q).fair then
      for _, entry in ipairs(redis.call('ZRANGE', list_key(profile, q, g), 0, -1)) do
        redis.call('DEL', turn_key(profile, q, g, (split_entry(entry))))
      end
    end
    redis.call('DEL', list_key(profile, q, g))
  end
  for _, g in ipairs(redis.call('SMEMBERS', GATES)) do
    for _, spot in ipairs(redis.call('SMEMBERS', spots_key(g))) do
      local p, q = string.match(spot, '^([^\31]*)\31(.*)$')
      if p == profile then
        forget_list(q, g)
        redis.call('SREM', spots_key(g), spot)
      end
    end
    if redis.call('EXISTS', spots_key(g)) == 0 then redis.call('SREM', GATES, g) end
  end
  for _, q in ipairs(redis.call('SMEMBERS', QUEUES)) do
    forget_list(q, '')
    redis.call('DEL', nodes_key(profile, q))
  end
  redis.call('DEL', heads_key(profile), idle_key(profile), short_key(profile), watch_key(profile), at_key(profile),
    profile_key(profile, 'queues'), profile_key(profile, 'types'), profile_key(profile, 'capabilities'),
    profile_key(profile, 'slots'), profile_key(profile, 'workers'))
  profile_ids = nil
end
if redis.call('GET', watch_key(profile)) == worker then
  redis.call('DEL', watch_key(profile))
  must_wake = true
end
if must_wake then wake_any() end  -- the worker leaves with an unanswered wake-up call, so another worker gets it
return is_last and 1 or 0
