-- Goes on with gates that may have opened: their refill is due, or the limits of their family were edited.
--
-- Returns  1 when there are more of them
--! include refills
local at = apply_refills()
watch_refills()
wake_any()
return at and tonumber(at) <= now_us() and 1 or 0
