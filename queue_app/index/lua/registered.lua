-- Lists the registered workers, each with its profile.
--
-- Returns  {profile, worker, profile, worker, ...}
--! include keys
local reply = {}
for _, p in ipairs(redis.call('SMEMBERS', PROFILES)) do
  for _, worker in ipairs(redis.call('SMEMBERS', profile_key(p, 'workers'))) do
    reply[#reply + 1] = p
    reply[#reply + 1] = worker
  end
end
return reply
