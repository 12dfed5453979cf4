-- Tells how many tasks of the queue run before a waiting one, itself counted; O(lanes).
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  lane    ARGV[2]  id
-- Returns  its position, 1 for the next; nil when it does not wait in the index
--! include keys
local q = string.match(ARGV[1], '^([^\31]*)')
local score = redis.call('ZSCORE', lane_key(ARGV[1]), ARGV[2])
if not score then return false end
local position = redis.call('ZRANK', lane_key(ARGV[1]), ARGV[2]) + 1
for _, lane in ipairs(redis.call('SMEMBERS', lanes_key(q))) do
  if lane ~= ARGV[1] then position = position + redis.call('ZCOUNT', lane_key(lane), '-inf', '(' .. score) end
end
return position
