-- Lists task types that wait in a queue of a profile but are not among its types: a worker whose code has such a type may
-- register it. About 500 lanes per call.
--
-- ARGV[1]  profile    ARGV[2]  queue    ARGV[3]  cursor ('0' at first)
-- Returns  {next cursor, type, ...}
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
