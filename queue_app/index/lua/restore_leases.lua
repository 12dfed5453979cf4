-- Writes the leases of tasks that are executing by their rows: first step of a rebuild, and
-- the repair of a lease that is missing.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     queue, n, id, ... (n ids, at most 1000), queue, n, ...
-- Returns  how many were missing
--
-- At 0, as the instant at which each was taken is not known any more: see release.
--! include keys
local restored, at = 0, 1
while at < #ARGV do
  local q, n = ARGV[at], tonumber(ARGV[at + 1])
  for i = 1, n do
    local id = ARGV[at + 1 + i]
    redis.call('SADD', LEASES, id)
    restored = restored + redis.call('ZADD', queue_leases_key(q), 'NX', 0, id)
  end
  if n > 0 then redis.call('SADD', QUEUES, q) end  -- so that the reconciler looks at its leases
  at = at + 2 + n
end
return restored
