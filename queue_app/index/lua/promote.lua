-- Lifts aged tasks to the band that their age gives them. Only a task that still waits at one of its own places moves.
--
-- ARGV     as for push
-- Returns  {id, from, to, id, from, to, ...}: the tasks that moved, and between which bands
--
-- Idempotent. A task that is leased, gone or not indexed stays as it is. Wakes no worker: there is no new work.
--! include packed
--! include lane_heads
--! include promotion
local risen, rose = {}, {}
for at = 1, #ARGV, 3 do
  local ids, scores = unpack_ids(ARGV[at + 1]), own_places(ARGV[at], ARGV[at + 2])
  local where, q = open_places(address_of(ARGV[at])), split_lane(ARGV[at])
  for i = 1, #ids do
    local id, own = ids[i], scores[i] or scores[1]
    local score = effective_place(own, q)
    local place = score < own and (#where == 1 and where[1] or find_task(where, id))
    local bands = place and lift(place[1], id .. place[2], own, score) or 0
    if bands > 0 then
      local to = math.floor(score / 1e13)
      local n_risen = #risen
      risen[n_risen + 1], risen[n_risen + 2], risen[n_risen + 3] = id, to + bands, to
      rose[place[1]] = true
    end
  end
end
for lane in pairs(rose) do refresh_lane(lane) end
refresh_touched()
count_promotions()
return risen
