-- Lets aged tasks rise to the band that their age gives them. The rows say which tasks and of
-- which band their own; only what still waits, at one of its places, moves.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     lane, n, own place, id, own place, id, ... (n pairs, at most 1000), lane, n, ...
-- Returns  {from normal to high, from low to normal, from background to low}: steps made; a task
--          that rises two bands makes two
--
-- Idempotent. What is leased, gone or not indexed stays as it is; nobody is woken, for there
-- is no more work than before.
--! include keys
--! include limits
--! include heads
--! include promotion
local at = 1
while at < #ARGV do
  local lane, n, rose = ARGV[at], tonumber(ARGV[at + 1]), 0
  for i = 1, n do
    local own = tonumber(ARGV[at + 2 * i])
    rose = rose + (rise(lane, ARGV[at + 1 + 2 * i], own, effective(own)) or 0)
  end
  at = at + 2 + 2 * n
  if rose > 0 then refresh_lane(lane) end
end
refresh_touched()
count_promotions()
return { steps[2], steps[3], steps[4] }
