-- Frees the slots of tasks whose rows have left the executing state.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     queue, n, id, leased_at_us, id, leased_at_us, ... (n pairs, at most 500), queue, n, ...
-- Returns  how many leases existed
--
-- Each only if it is still the lease that was taken at that instant ('' for whichever it is):
-- who is late must not free the slot of somebody who was granted the task meanwhile. A lease
-- that a rebuild restored (at 0) counts as the one that the task's holder knows.
-- A slot is a member of a set, so however often it is released, at most one is freed.
-- Where the queue, everything, or a gate has a limit, one waiting worker is woken for each.
--! include keys
--! include limits
--! include heads
--! include wake
local freed, at = 0, 1
while at < #ARGV do
  local q, n = ARGV[at], tonumber(ARGV[at + 1])
  local ids = {}
  for i = 1, n do ids[i] = ARGV[at + 2 * i] end
  local leased, mine = redis.call('ZMSCORE', queue_leases_key(q), unpack(ids)), {}
  for i = 1, n do
    local held, token = leased[i], ARGV[at + 2 * i + 1]
    if token == '' or (held and (tonumber(held) == tonumber(token) or tonumber(held) == 0)) then
      mine[#mine + 1] = ids[i]
    end
  end
  at = at + 2 + 2 * n
  if #mine > 0 then
    local gates = let_pass(mine)
    redis.call('HDEL', LEASES, unpack(mine))
    local removed = redis.call('ZREM', queue_leases_key(q), unpack(mine))
    freed = freed + removed
    local capped = queue_policy(q).cap
    if capped then refresh_queue_everywhere(q) end
    for g in pairs(gates) do refresh_gate(g) end
    refresh_touched()
    if capped or global_policy()[1] or next(gates) then
      for _ = 1, removed do
        if not wake_any() then break end
      end
    end
  end
end
return freed
