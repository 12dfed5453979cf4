-- Lists task types that wait in a queue of a profile but are not among its types: a worker whose code has such a type may
-- register it.
--
-- ARGV[1]  profile    ARGV[2..]  queues
-- Returns  {type, ...}
--! include keys
local reply, seen = {}, {}
for i = 2, #ARGV do
  for _, task_type in ipairs(redis.call('HKEYS', types_key(ARGV[i]))) do
    if not seen[task_type] and redis.call('SISMEMBER', profile_key(ARGV[1], 'types'), task_type) == 0 then
      seen[task_type] = true
      reply[#reply + 1] = task_type
    end
  end
end
return reply
