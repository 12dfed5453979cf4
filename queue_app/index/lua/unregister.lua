-- Forgets a worker; its profile goes with the last worker that has it.
--
-- ARGV[1]  profile    ARGV[2]  worker id
-- Returns  1 when the profile was forgotten too: its heads must go (forget_heads.lua); else 0
--! include wake
local profile, worker = ARGV[1], ARGV[2]
local must_wake = redis.call('LLEN', wake_key(worker)) > 0
redis.call('ZREM', idle_key(profile), worker)
redis.call('ZREM', short_key(profile), worker)
redis.call('HDEL', GENERATION, 'w:' .. worker)
redis.call('HDEL', EXCHANGES, worker)
end_reservations(worker)
redis.call('DEL', wake_key(worker))
redis.call('SREM', profile_key(profile, 'workers'), worker)
local is_last = redis.call('SCARD', profile_key(profile, 'workers')) == 0
if is_last then
  redis.call('SREM', PROFILES, profile)
  redis.call('HDEL', GENERATION, 'h:' .. profile)
  redis.call('HSET', GENERATION, 'x:' .. profile, '1')
  redis.call('DEL', idle_key(profile), short_key(profile), profile_key(profile, 'queues'), profile_key(profile, 'types'),
    profile_key(profile, 'capabilities'), profile_key(profile, 'slots'), profile_key(profile, 'workers'))
  profile_ids = nil
end
if redis.call('GET', watch_key(profile)) == worker then
  redis.call('DEL', watch_key(profile))
  must_wake = true
end
if must_wake then wake_any() end  -- the worker leaves with an unanswered wake-up call, so another worker gets it
return is_last and 1 or 0
