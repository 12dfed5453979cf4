-- Forgets a worker; its profile goes with the last worker that has it.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  profile    ARGV[2]  worker id
-- Returns  1 when the profile went too
--! include keys
--! include limits
--! include heads
--! include wake
local profile, worker = ARGV[1], ARGV[2]
local woken = redis.call('LLEN', wake_key(worker))
redis.call('ZREM', idle_key(profile), worker)
redis.call('DEL', wake_key(worker))
redis.call('SREM', profile_key(profile, 'workers'), worker)
local last = redis.call('SCARD', profile_key(profile, 'workers')) == 0
if last then
  redis.call('SREM', PROFILES, profile)
  for _, q in ipairs(redis.call('SMEMBERS', QUEUES)) do redis.call('DEL', queue_heads_key(profile, q)) end
  redis.call('DEL', heads_key(profile), idle_key(profile), profile_key(profile, 'queues'),
    profile_key(profile, 'types'), profile_key(profile, 'capabilities'), profile_key(profile, 'workers'))
end
if woken > 0 then wake_any() end  -- it takes its wake-up call with it: call somebody else
return last and 1 or 0
