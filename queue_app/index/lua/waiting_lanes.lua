-- Counts the waiting tasks in each lane of a queue, and finds the oldest of each lane, about 500 lanes per call.
--
-- ARGV[1]  queue    ARGV[2]  cursor ('0' at first)
-- Returns  {next cursor, lane, "count score", ...}; the score is the one with the earliest time, of any band
--! include keys
local page = redis.call('SSCAN', lanes_key(ARGV[1]), ARGV[2], 'COUNT', 500)
local reply = { page[1] }
for _, lane in ipairs(page[2]) do
  local key, oldest, found = lane_key(lane), math.huge, ''
  local score = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]
  while score do -- once per band that the lane holds
    local band = math.floor(tonumber(score) / 1e13)
    if tonumber(score) - band * 1e13 < oldest then oldest, found = tonumber(score) - band * 1e13, score end
    score = redis.call('ZRANGEBYSCORE', key, whole((band + 1) * 1e13), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  end
  reply[#reply + 1] = lane
  reply[#reply + 1] = redis.call('ZCARD', key) .. ' ' .. found
end
return reply
