-- Writes the leases of tasks that are executing according to their rows: the first step of a rebuild, and the repair of
-- a missing lease.
--
-- KEYS[1]  prefix of all keys (their hash tag)
-- ARGV     lane, n, id, ... (n ids, at most 1000), lane, n, ...
-- Returns  how many were missing
--
-- The instant of each lease is unknown and written as 0; release accepts it.
--! include lanes
local restored, at = 0, 1
while at < #ARGV do
  local lane, n = lane_of(ARGV[at]), tonumber(ARGV[at + 1])
  local q = split_lane(lane)
  for i = 1, n do
    local id = ARGV[at + 1 + i]
    write_leases({ id, lane })
    restored = restored + redis.call('ZADD', queue_leases_key(q), 'NX', 0, id)
    for _, g in ipairs(gates_of(lane)) do redis.call('SADD', held_key(g), id) end
  end
  if n > 0 then redis.call('SADD', QUEUES, q) end  -- so that the reconciler compares its leases
  at = at + 2 + n
end
return restored
