-- Registers a worker under its profile.
--
-- ARGV[1]  profile    ARGV[2]  worker id
-- ARGV[3..] three lists, each as count, item, ...: queues (none: all), task types, capabilities; then the slots of the
--          worker, or '' when it takes tasks of any weight
-- Returns  1 when the profile is new
--! include keys
local profile, at = ARGV[1], 3
for _, part in ipairs({ 'queues', 'types', 'capabilities' }) do
  local n = tonumber(ARGV[at])
  redis.call('DEL', profile_key(profile, part))
  for i = 1, n do redis.call('SADD', profile_key(profile, part), ARGV[at + i]) end
  at = at + 1 + n
end
redis.call('DEL', profile_key(profile, 'slots'))
if ARGV[at] ~= '' then redis.call('SET', profile_key(profile, 'slots'), ARGV[at]) end
redis.call('SADD', profile_key(profile, 'workers'), ARGV[2])
return redis.call('SADD', PROFILES, profile)
