-- Counts what waits in a queue by effective band, a bounded number of lanes at a time.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  queue    ARGV[2]  cursor ('0' at first)
-- Returns  {next cursor, leased, count, oldest score or '', ...} with a pair for each band from critical on
--! include keys
local page = redis.call('SSCAN', lanes_key(ARGV[1]), ARGV[2], 'COUNT', 500)
local counts, oldest = { 0, 0, 0, 0, 0 }, { '', '', '', '', '' }
for _, lane in ipairs(page[2]) do
  for band = 0, 4 do
    local low = string.format('%.0f', band * 1e13)
    local high = string.format('(%.0f', (band + 1) * 1e13)
    local n = redis.call('ZCOUNT', lane_key(lane), low, high)
    if n > 0 then
      counts[band + 1] = counts[band + 1] + n
      local first = redis.call('ZRANGEBYSCORE', lane_key(lane), low, high, 'WITHSCORES', 'LIMIT', 0, 1)[2]
      local known = oldest[band + 1]
      if known == '' or tonumber(first) < tonumber(known) then oldest[band + 1] = first end
    end
  end
end
local reply = { page[1], redis.call('ZCARD', queue_leases_key(ARGV[1])) }
for band = 1, 5 do
  reply[#reply + 1] = counts[band]
  reply[#reply + 1] = oldest[band]
end
return reply
