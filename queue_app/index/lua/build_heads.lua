-- Builds the heads of a new profile for one queue, about 200 lanes per call. Pushes and claims keep the same heads up to
-- date meanwhile, so the order of calls does not matter.
--
-- ARGV[1]  profile    ARGV[2]  '1': the last queue    ARGV[3]  queue    ARGV[4]  cursor ('0' at first)
-- Returns  the next cursor; '0' when the queue is done
--! include lane_heads
local profile, q = ARGV[1], ARGV[3]
if not is_registered(profile) then return '0' end
local page = redis.call('SSCAN', lanes_key(q), ARGV[4], 'COUNT', 200)
for _, lane in ipairs(page[2]) do
  if can_run(profile, lane) then
    local id, score = first_of(lane_key(lane))
    if id then place_lane(profile, lane, score) end
  end
end
refresh_touched()
refresh_queue(profile, q)
if page[1] == '0' and ARGV[2] == '1' then redis.call('HSET', GENERATION, 'h:' .. profile, '1') end
return page[1]
