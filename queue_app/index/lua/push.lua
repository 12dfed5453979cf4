-- Puts queued tasks at their place in their lanes: after an enqueue, a retry that came due,
-- a change of priority, and when the reconciler or a rebuild finds one missing or misplaced.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     lane, n, own place, id, own place, id, ... (n pairs, at most 1000), lane, n, ...
--          a lane names the user always; the queue decides whether it has lanes for each
-- Returns  how many ids were missing or misplaced
--
-- Idempotent. An id that holds a lease is left alone: its claim is being decided by the row.
-- The own place is band * 10^13 + queued_at; an aged task is put as high as its age gives it.
-- One that waits below that, because its promotion has not come yet, rises, and is no repair.
--! include keys
--! include limits
--! include heads
--! include wake
--! include promotion
local changed, at = 0, 1
while at < #ARGV do
  local lane, n, rose = lane_of(ARGV[at]), tonumber(ARGV[at + 1]), 0
  local ids, pairs_to_add = {}, {}
  for i = 1, n do ids[i] = ARGV[at + 1 + 2 * i] end
  local leased = redis.call('HMGET', LEASES, unpack(ids))
  for i = 1, n do
    if not leased[i] then
      local own = tonumber(ARGV[at + 2 * i])
      local place = effective(own)
      local risen = place ~= own and rise(lane, ids[i], own, place)
      if risen then
        rose = rose + risen
      else
        pairs_to_add[#pairs_to_add + 1] = place == own and ARGV[at + 2 * i] or string.format('%.17g', place)
        pairs_to_add[#pairs_to_add + 1] = ids[i]
      end
    end
  end
  at = at + 2 + 2 * n
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
