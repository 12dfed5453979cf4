-- Tells how many tasks of the queue come before a waiting one by band and time, itself counted; O(lanes).
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  lane    ARGV[2]  id
-- Returns  its position, 1 for the next; nil when it does not wait in the index
--! include keys
--! include limits
local waits = lane_of(ARGV[1])
local q = split_lane(waits)
local score = redis.call('ZSCORE', lane_key(waits), ARGV[2])
if not score then return false end
local position = redis.call('ZRANK', lane_key(waits), ARGV[2]) + 1
for _, lane in ipairs(redis.call('SMEMBERS', lanes_key(q))) do
  if lane ~= waits then position = position + redis.call('ZCOUNT', lane_key(lane), '-inf', '(' .. score) end
end
return position
