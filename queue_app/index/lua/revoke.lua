-- Revokes leases that no row confirms: proposals that PostgreSQL refused, and claims whose worker died before its commit.
--
-- KEYS[1]  prefix of all keys (their hash tag)
-- ARGV     queue, id, leased_at_us, queue, id, leased_at_us, ... (at most 1000 triples)
-- Returns  how many leases were revoked
--
-- Revokes a lease only if it is still the one taken at that instant: a later lease of the same id, by a rebuild or by
-- another worker, stays.
--! include wake
local revoked, queues = 0, {}
for i = 1, #ARGV, 3 do
  local q, id = ARGV[i], ARGV[i + 1]
  local leased_at = redis.call('ZSCORE', queue_leases_key(q), id)
  if leased_at and tonumber(leased_at) == tonumber(ARGV[i + 2]) then
    redis.call('ZREM', queue_leases_key(q), id)
    for g in pairs(leave_gates({ id })) do refresh_gate(g) end
    redis.call('HDEL', LEASES, id)
    queues[q] = true
    revoked = revoked + 1
  end
end
for q in pairs(queues) do refresh_queue_everywhere(q) end
refresh_touched()
if revoked > 0 then wake_any() end
return revoked
