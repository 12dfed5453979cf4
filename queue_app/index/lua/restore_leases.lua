-- Writes the leases of tasks that are executing by their rows: first step of a rebuild, and
-- the repair of a lease that is missing.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     lane, n, id, ... (n ids, at most 1000), lane, n, ...
-- Returns  how many were missing
--
-- At 0, as the instant at which each was taken is not known any more: see release.
--! include keys
--! include limits
local restored, at = 0, 1
while at < #ARGV do
  local lane, n = lane_of(ARGV[at]), tonumber(ARGV[at + 1])
  local q = split_lane(lane)
  for i = 1, n do
    local id = ARGV[at + 1 + i]
    hold_leases({ id, lane })
    restored = restored + redis.call('ZADD', queue_leases_key(q), 'NX', 0, id)
    for _, g in ipairs(gates_of(lane)) do redis.call('SADD', held_key(g), id) end
  end
  if n > 0 then redis.call('SADD', QUEUES, q) end  -- so that the reconciler looks at its leases
  at = at + 2 + n
end
return restored
