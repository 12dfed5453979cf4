-- Lets aged tasks rise to the band that their age gives them. The rows say which tasks and of
-- which band their own; only what still waits, at one of its places, moves.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     lane, n, own place, id, own place, id, ... (n pairs, at most 1000), lane, n, ...
-- Returns  {id, from, to, id, from, to, ...}: what rose, and between which bands
--
-- Idempotent. What is leased, gone or not indexed stays as it is; nobody is woken, for there
-- is no more work than before.
--! include keys
--! include limits
--! include heads
--! include promotion
local risen, at = {}, 1
while at < #ARGV do
  local lane, n, rose = lane_of(ARGV[at]), tonumber(ARGV[at + 1]), 0
  for i = 1, n do
    local own, id = tonumber(ARGV[at + 2 * i]), ARGV[at + 1 + 2 * i]
    local place = effective(own)
    local bands = rise(lane, id, own, place) or 0
    if bands > 0 then
      local to = math.floor(place / 1e13)
      local n_risen = #risen
      risen[n_risen + 1], risen[n_risen + 2], risen[n_risen + 3] = id, to + bands, to
      rose = rose + bands
    end
  end
  at = at + 2 + 2 * n
  if rose > 0 then refresh_lane(lane) end
end
refresh_touched()
count_promotions()
return risen
