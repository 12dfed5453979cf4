-- Lists task types that wait in queues of a profile but are not among its types: its worker
-- may learn them, if its code has them.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  profile    ARGV[2]  queue    ARGV[3]  cursor ('0' at first)
-- Returns  {next cursor, type, ...}
--! include keys
--! include limits
local page = redis.call('SSCAN', lanes_key(ARGV[2]), ARGV[3], 'COUNT', 500)
local reply, seen = { page[1] }, {}
for _, lane in ipairs(page[2]) do
  local _, task_type = split_lane(lane)
  if not seen[task_type] and redis.call('SISMEMBER', profile_key(ARGV[1], 'types'), task_type) == 0 then
    seen[task_type] = true
    reply[#reply + 1] = task_type
  end
end
return reply
