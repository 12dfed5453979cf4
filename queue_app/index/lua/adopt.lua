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
  local _, task_type, capabilities = split_lane(lane)
  if runs(profile, q, task_type, capabilities) then
    local head = redis.call('ZRANGE', lane_key(lane), 0, 0, 'WITHSCORES')
    if head[1] then redis.call('ZADD', queue_heads_key(profile, q), head[2], lane) end
  end
end
refresh_queue(profile, q)
return page[1]
