-- Lifts aged tasks to the band that their age gives them. Only a task that still waits at one of its own places moves.
--
-- ARGV     as for push
-- Returns  {id, from, to, id, from, to, ...}: the tasks that moved, and between which bands
--
-- Idempotent. A task that is leased, gone or not indexed stays as it is. Wakes no worker: there is no new work.
--! include packed
--! include lane_heads
--! include promotion
local risen = {}
for at = 1, #ARGV, 3 do
  local lane, ids, places, rose = lane_of(ARGV[at]), unpack_ids(ARGV[at + 1]), unpack_places(ARGV[at + 2]), 0
  for i = 1, #ids do
    local id, own = ids[i], places[i] or places[1]
    local place = effective_place(own)
    local bands = lift(lane, id, own, place) or 0
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
