-- Repeats wake-up calls that may have been lost: wakes one idle worker of every profile that has work.
--
-- Returns  how many were woken
--! include refills
local woken = 0
apply_refills()
watch_refills()
if global_room() <= 0 then return 0 end
for _, p in ipairs(profiles()) do
  if wake_if_work(p) then woken = woken + 1 end
end
return woken
