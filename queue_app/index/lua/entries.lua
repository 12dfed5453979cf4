-- Lists the tasks that wait in a lane, about 1000 per call, in no order.
--
-- ARGV[1]  lane    ARGV[2]  cursor ('0' at first)
-- Returns  {next cursor, address, id, address, id, ...}; a task that waits during all calls is listed at least once. A member
--          that can be no task comes whole, with the lane
--! include places
local lane = ARGV[1]
local page = redis.call('ZSCAN', lane_key(lane), ARGV[2], 'COUNT', 1000)
local reply = { page[1] }
for i = 1, #page[2], 2 do
  local member = page[2][i]
  local address, id, tail = lane, string.sub(member, 1, 16), string.sub(member, 17)
  if tail ~= '' then
    address, id = nil, member
    for _, place in ipairs(places(address_in(lane, tail))) do
      if place[1] == lane and place[2] == tail then address, id = address_in(lane, tail), string.sub(member, 1, 16) end
    end
  end
  reply[#reply + 1] = address or lane
  reply[#reply + 1] = id
end
return reply
