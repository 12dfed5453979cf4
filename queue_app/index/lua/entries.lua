-- Lists the tasks that wait in a lane, about 1000 per call, in no order.
--
-- ARGV[1]  lane    ARGV[2]  cursor ('0' at first)
-- Returns  {next cursor, id, id, ...}; a task that waits during all calls is listed at least once
--! include keys
local page = redis.call('ZSCAN', lane_key(ARGV[1]), ARGV[2], 'COUNT', 1000)
local reply = { page[1] }
for i = 1, #page[2], 2 do reply[#reply + 1] = page[2][i] end
return reply
