-- Puts queued tasks at their place in their lanes: after an enqueue, a retry that came due,
-- a change of priority, and when the reconciler or a rebuild finds one missing or misplaced.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     lane, ids, own places, lane, ids, own places, ...: packed as for compare, at most 1000
--          of a lane; one place alone is that of all of them
--          a lane names the user always; the queue decides whether it has lanes for each
-- Returns  how many ids were missing or misplaced
--
-- Idempotent. An id that holds a lease is left alone: its claim is being decided by the row.
-- The own place is band * 10^13 + queued_at; an aged task is put as high as its age gives it.
-- One that waits below that, because its promotion has not come yet, rises, and is no repair.
--! include keys
--! include packed
--! include limits
--! include heads
--! include wake
--! include promotion
local changed = 0
for at = 1, #ARGV, 3 do
  local lane, ids, places, rose = lane_of(ARGV[at]), unpack_ids(ARGV[at + 1]), unpack_places(ARGV[at + 2]), 0
  local pairs_to_add = {}
  local leased = redis.call('HMGET', LEASES, unpack(ids))
  local own, place, text
  for i = 1, #ids do
    if places[i] then
      own = places[i]
      place = effective(own)
      text = string.format('%.17g', place)
    end
    if not leased[i] then
      local risen = place ~= own and rise(lane, ids[i], own, place)
      if risen then
        rose = rose + risen
      else
        pairs_to_add[#pairs_to_add + 1] = text
        pairs_to_add[#pairs_to_add + 1] = ids[i]
      end
    end
  end
  if rose > 0 and #pairs_to_add == 0 then
    refresh_lane(lane)
    refresh_touched()
  elseif #pairs_to_add > 0 then
    local moved = redis.call('ZADD', lane_key(lane), 'CH', unpack(pairs_to_add))
    changed = changed + moved
    local q = split_lane(lane)
    redis.call('SADD', lanes_key(q), lane)
    redis.call('SADD', QUEUES, q)
    refresh_lane(lane)
    refresh_touched()
    if moved > 0 then wake_for_lane(lane) end
  end
end
count_promotions()
return changed
