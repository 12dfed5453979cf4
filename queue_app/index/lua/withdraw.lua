-- Ends leases that no row confirms: proposals that the rows refused, and claims that died
-- between the index and the row.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     queue, id, leased_at_us, queue, id, leased_at_us, ... (at most 1000 triples)
-- Returns  how many leases were ended
--
-- Each only if it is still the lease that was taken at that instant: a lease that a rebuild
-- or another worker has taken for the same id meanwhile stays.
--! include keys
--! include limits
--! include heads
--! include wake
local ended, queues = 0, {}
for i = 1, #ARGV, 3 do
  local q, id = ARGV[i], ARGV[i + 1]
  local leased_at = redis.call('ZSCORE', queue_leases_key(q), id)
  if leased_at and tonumber(leased_at) == tonumber(ARGV[i + 2]) then
    redis.call('ZREM', queue_leases_key(q), id)
    for g in pairs(let_pass({ id })) do refresh_gate(g) end
    redis.call('HDEL', LEASES, id)
    queues[q] = true
    ended = ended + 1
  end
end
for q in pairs(queues) do refresh_queue_everywhere(q) end
refresh_touched()
if ended > 0 then wake_any() end
return ended
