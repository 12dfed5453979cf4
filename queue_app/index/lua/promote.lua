-- Lets aged tasks rise to the band that their age gives them. The rows say which tasks and of
-- which band their own; only what still waits, at one of its places, moves.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     as for push
-- Returns  {id, from, to, id, from, to, ...}: what rose, and between which bands
--
-- Idempotent. What is leased, gone or not indexed stays as it is; nobody is woken, for there
-- is no more work than before.
--! include keys
--! include packed
--! include limits
--! include heads
--! include promotion
local risen = {}
for at = 1, #ARGV, 3 do
  local lane, ids, places, rose = lane_of(ARGV[at]), unpack_ids(ARGV[at + 1]), unpack_places(ARGV[at + 2]), 0
  for i = 1, #ids do
    local id, own = ids[i], places[i] or places[1]
    local place = effective(own)
    local bands = rise(lane, id, own, place) or 0
    if bands > 0 then
      local to = math.floor(place / 1e13)
      local n_risen = #risen
      risen[n_risen + 1], risen[n_risen + 2], risen[n_risen + 3] = id, to + bands, to
      rose = rose + bands
    end
  end
  if rose > 0 then refresh_lane(lane) end
end
refresh_touched()
count_promotions()
return risen
