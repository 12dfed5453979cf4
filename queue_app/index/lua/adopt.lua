-- Builds the heads of a new profile for one queue, a bounded number of lanes at a time.
-- Pushes and claims meanwhile keep the same heads up to date, so the order does not matter.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  profile    ARGV[2]  queue    ARGV[3]  cursor ('0' at first)
-- Returns  the next cursor; '0' when the queue is done
--! include keys
--! include limits
--! include heads
local profile, q = ARGV[1], ARGV[2]
local page = redis.call('SSCAN', lanes_key(q), ARGV[3], 'COUNT', 500)
for _, lane in ipairs(page[2]) do
  if runs(profile, lane) then
    local id, score = first(lane_key(lane))
    if id then stand(profile, lane, score) end
  end
end
refresh_touched()
refresh_queue(profile, q)
return page[1]
