-- Returns the position of a waiting task in its queue, by band and time. O(lanes).
--
-- ARGV[1]  lane    ARGV[2]  id
-- Returns  1 for the first task of the queue; nil when the task does not wait in the index
--! include lanes
local own = lane_of(ARGV[1])
local score = redis.call('ZSCORE', lane_key(own), ARGV[2])
if not score then return false end
local position = redis.call('ZRANK', lane_key(own), ARGV[2]) + 1
for _, lane in ipairs(redis.call('SMEMBERS', lanes_key((split_lane(own))))) do
  if lane ~= own then position = position + redis.call('ZCOUNT', lane_key(lane), '-inf', '(' .. score) end
end
return position
