-- Registers a worker under its profile.
--
-- ARGV[1]  profile    ARGV[2]  worker id
-- ARGV[3..] three lists, each as count, item, ...: queues (none: all), task types, capabilities; then the slots of the
--          worker, or '' when it takes tasks of any weight
-- Returns  0 when the heads of the profile are complete, or while a rebuild wipes the index: the worker's first claim after it
--          says to register again; 1 when they must be built (build_heads.lua); 2 when those of an earlier profile of the
--          same name must be forgotten first (forget_heads.lua)
--! include keys
local profile, at = ARGV[1], 3
local wiped = redis.call('HMGET', GENERATION, 'state', 'wiping')
if wiped[1] == 'rebuilding' and wiped[2] then return 0 end  -- else the wipe may delete a part of what is written here
if redis.call('HEXISTS', GENERATION, 'x:' .. profile) == 1 then return 2 end
redis.call('SADD', profile_key(profile, 'workers'), ARGV[2])
local is_known = redis.call('SADD', PROFILES, profile) == 0
if is_known and redis.call('HEXISTS', GENERATION, 'h:' .. profile) == 1 then return 0 end
for _, part in ipairs({ 'queues', 'types', 'capabilities' }) do
  local n = tonumber(ARGV[at])
  redis.call('DEL', profile_key(profile, part))
  for i = 1, n do redis.call('SADD', profile_key(profile, part), ARGV[at + i]) end
  at = at + 1 + n
end
redis.call('DEL', profile_key(profile, 'slots'))
if ARGV[at] ~= '' then redis.call('SET', profile_key(profile, 'slots'), ARGV[at]) end
return 1
