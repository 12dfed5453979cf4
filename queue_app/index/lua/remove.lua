-- Removes waiting tasks from their lanes: cancelled, expired or purged.
--
-- ARGV     lane, id, lane, id, ... (at most 1000 pairs)
-- Returns  how many were there
--! include lane_heads
local removed, lanes = 0, {}
for i = 1, #ARGV, 2 do
  local lane = lane_of(ARGV[i])
  local gone = redis.call('ZREM', lane_key(lane), ARGV[i + 1])
  if gone > 0 then lanes[lane] = true end
  removed = removed + gone
end
for lane in pairs(lanes) do refresh_lane(lane) end
refresh_touched()
return removed
