-- Removes members of a gate that have no lease.
--
-- ARGV[1]  gate    ARGV[2..]  ids (at most 500)
-- Returns  how many were removed
--! include wake
local g, removed = ARGV[1], 0
for i = 2, #ARGV do
  if redis.call('HEXISTS', LEASES, ARGV[i]) == 0 then removed = removed + redis.call('SREM', held_key(g), ARGV[i]) end
end
if removed > 0 then
  refresh_gate(g)
  refresh_touched()
  wake_any()
end
return removed
