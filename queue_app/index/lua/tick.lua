-- The fallback for lost wake-up calls: every profile that has work and idle workers wakes one.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- Returns  how many were woken
--! include keys
--! include limits
--! include heads
--! include wake
local woken = 0
open_refills()
watch()
if global_room() <= 0 then return 0 end
for _, p in ipairs(profiles()) do
  if wake_if_work(p) then woken = woken + 1 end
end
return woken
