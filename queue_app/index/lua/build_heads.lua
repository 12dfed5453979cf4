-- Builds the heads of a new profile, up to 200 lanes or 60 queues per call. Pushes and claims keep the same heads up to date
-- meanwhile, so the order of calls does not matter.
--
-- ARGV[1]  profile    ARGV[2]  cursor in the first queue ('0' at first)    ARGV[3..]  queues; none: all have been built
-- Returns  {queues that are done, cursor in the next one}
--! include lane_heads
--! include walk
local profile = ARGV[1]
if not is_registered(profile) then return { #ARGV - 2, '0' } end
if not ARGV[3] then redis.call('HSET', GENERATION, 'h:' .. profile, '1') end
local done, cursor = walk(2, 120, function(q, cursor)
  local page = redis.call('SSCAN', lanes_key(q), cursor, 'COUNT', 200)
  for _, lane in ipairs(page[2]) do
    if can_run(profile, lane) then
      local id, score = first_of(lane_key(lane))
      if id then place_lane(profile, lane, score) end
    end
  end
  touch(profile, q, '')
  return page[1], #page[2] + 1
end)
refresh_touched()
return { done, cursor }
