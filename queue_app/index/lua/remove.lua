-- Removes waiting tasks from their lanes: cancelled, expired or purged.
--
-- ARGV     lane, id, lane, id, ... (at most 1000 pairs)
-- Returns  how many were there
--
-- When a task that takes several slots is gone, a worker that waited for free slots may start a lighter one: one is woken.
--! include wake
local removed, lanes, was_heavy = 0, {}, false
for i = 1, #ARGV, 2 do
  local lane = lane_of(ARGV[i])
  local gone = redis.call('ZREM', lane_key(lane), ARGV[i + 1])
  if gone > 0 then
    lanes[lane] = true
    was_heavy = was_heavy or select(6, split_lane(lane)) > 1
  end
  removed = removed + gone
end
for lane in pairs(lanes) do refresh_lane(lane) end
refresh_touched()
if was_heavy then wake_any() end
return removed
