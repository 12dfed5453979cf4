-- Counts the waiting tasks of a queue by address, and finds the oldest of each, about 500 lanes per call.
--
-- ARGV[1]  queue    ARGV[2]  cursor ('0' at first)
-- Returns  {next cursor, address, "count score", ...}; the score is the one with the earliest time, of any band
--
-- Where keys or users are limited, the first members of lanes are told apart, about 2000 in one call; those behind them count
-- as the last of these.
--! include places
local left = has_gate_limits() and 2000 or 0
local page = redis.call('SSCAN', lanes_key(ARGV[1]), ARGV[2], 'COUNT', 500)
local reply = { page[1] }

local function oldest_of(key)
  local oldest, found = math.huge, ''
  local score = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]
  while score do  -- once per band that the lane holds
    local band = math.floor(tonumber(score) / 1e13)
    if tonumber(score) - band * 1e13 < oldest then oldest, found = tonumber(score) - band * 1e13, score end
    score = redis.call('ZRANGEBYSCORE', key, whole((band + 1) * 1e13), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  end
  return found
end

for _, lane in ipairs(page[2]) do
  local key, order, counts, oldest = lane_key(lane), {}, {}, {}
  local rest = redis.call('ZCARD', key)
  local members = left > 0 and redis.call('ZRANGE', key, 0, left - 1, 'WITHSCORES') or {}
  local address = address_in(lane, string.sub(first_of(key) or '', 17))
  for i = 1, #members, 2 do
    address = address_in(lane, string.sub(members[i], 17))
    if not counts[address] then
      order[#order + 1] = address
      counts[address], oldest[address] = 0, members[i + 1]
    end
    counts[address] = counts[address] + 1
    if tonumber(members[i + 1]) % 1e13 < tonumber(oldest[address]) % 1e13 then oldest[address] = members[i + 1] end
  end
  left, rest = left - #members / 2, rest - #members / 2
  if rest > 0 then
    if not counts[address] then
      order[#order + 1] = address
      counts[address], oldest[address] = 0, oldest_of(key)
    end
    counts[address] = counts[address] + rest
  end
  for _, each in ipairs(order) do
    reply[#reply + 1] = each
    reply[#reply + 1] = string.format('%d', counts[each]) .. ' ' .. oldest[each]
  end
end
return reply
