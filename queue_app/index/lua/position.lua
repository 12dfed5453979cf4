-- Returns the position of a waiting task in its queue, by band and time.
--
-- ARGV[1]  address    ARGV[2]  id    ARGV[3]  score of a task that will wait there, if it does not yet; or none
-- Returns  1 for the first task of the queue; nil when the task does not wait in the index (yet)
--
-- Counts its own lane and about 50 others. In a queue with more lanes (a fair one with many users) more tasks may be ahead.
--! include places
--! include promotion
local where = open_places(address_of(ARGV[1]))
local place, score = find_task(where, ARGV[2])
if not place then
  -- While a rebuild loads tasks, the number of tasks ahead is unknown.
  if not ARGV[3] or redis.call('HGET', GENERATION, 'state') == 'loading' then return false end
  place, score = where[1], exact(own_place(tonumber(ARGV[3]), (split_lane(ARGV[1]))))
end
local lane = place[1]
local rank = redis.call('ZRANK', lane_key(lane), ARGV[2] .. place[2]) or redis.call('ZCOUNT', lane_key(lane), '-inf', score)
local position = rank + 1
local lanes = redis.call('SSCAN', lanes_key((split_lane(lane))), '0', 'COUNT', 50)[2]
for i = 1, math.min(#lanes, 100) do
  if lanes[i] ~= lane then position = position + redis.call('ZCOUNT', lane_key(lanes[i]), '-inf', '(' .. score) end
end
return position
