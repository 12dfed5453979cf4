-- Puts queued tasks at their places in their lanes: after an enqueue, a retry that came due or a change of priority, and
-- when the reconciler or a rebuild finds a task missing or misplaced.
--
-- ARGV     lane, ids, own places, lane, ids, own places, ...: ids one after another, 16 bytes each; places
--          (band * 10^13 + queued_at, ms) as big-endian doubles, in the same order, or a single one for all ids; at most
--          1000 ids of a lane. A lane always names the user; the queue decides whether users have own lanes
-- Returns  how many ids were missing or misplaced
--
-- Idempotent. An id that holds a lease is left alone: its row decides about the claim. Age lifts a task above its own
-- place. A task that waits below because its promotion has not come yet is lifted, and does not count as misplaced.
--! include packed
--! include wake
--! include promotion
local changed = 0
for at = 1, #ARGV, 3 do
  local lane, ids, places, rose = lane_of(ARGV[at]), unpack_ids(ARGV[at + 1]), unpack_places(ARGV[at + 2]), 0
  local scores_and_ids = {}
  local leased = redis.call('HMGET', LEASES, unpack(ids))
  local own, place, score
  for i = 1, #ids do
    if places[i] then
      own = places[i]
      place = effective_place(own)
      score = exact(place)
    end
    if not leased[i] then
      local risen = place ~= own and lift(lane, ids[i], own, place)
      if risen then
        rose = rose + risen
      else
        scores_and_ids[#scores_and_ids + 1] = score
        scores_and_ids[#scores_and_ids + 1] = ids[i]
      end
    end
  end
  local moved = 0
  if #scores_and_ids > 0 then
    moved = redis.call('ZADD', lane_key(lane), 'CH', unpack(scores_and_ids))
    local q = split_lane(lane)
    redis.call('SADD', lanes_key(q), lane)
    redis.call('SADD', QUEUES, q)
  end
  if rose > 0 or #scores_and_ids > 0 then
    refresh_lane(lane)
    refresh_touched()
  end
  if moved > 0 then wake_for_lane(lane) end
  changed = changed + moved
end
count_promotions()
return changed
