-- Removes waiting tasks from their lanes: cancelled, expired or purged.
--
-- ARGV     address, id, address, id, ... (at most 1000 pairs); for a member that is no id, its lane and the member
-- Returns  how many were there
--
-- When a task that takes several slots is gone, a worker that waited for free slots may start a lighter one: one is woken.
--! include wake
local removed, lanes, was_heavy = 0, {}, false
for i = 1, #ARGV, 2 do
  local id = ARGV[i + 1]
  for _, place in ipairs(#id == 16 and open_places(address_of(ARGV[i])) or { { ARGV[i], '' } }) do
    local lane = place[1]
    local gone = redis.call('ZREM', lane_key(lane), id .. place[2])
    if gone > 0 then
      lanes[lane] = true
      was_heavy = was_heavy or select(6, split_lane(lane)) > 1
    end
    removed = removed + gone
  end
end
for lane in pairs(lanes) do refresh_lane(lane) end
refresh_touched()
if was_heavy then wake_any() end
return removed
