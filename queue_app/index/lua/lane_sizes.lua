-- Counts the waiting tasks in each lane of a queue, about 500 lanes per call.
--
-- ARGV[1]  queue    ARGV[2]  cursor ('0' at first)
-- Returns  {next cursor, lane, count, lane, count, ...}
--! include keys
local page = redis.call('SSCAN', lanes_key(ARGV[1]), ARGV[2], 'COUNT', 500)
local reply = { page[1] }
for _, lane in ipairs(page[2]) do
  reply[#reply + 1] = lane
  reply[#reply + 1] = redis.call('ZCARD', lane_key(lane))
end
return reply
