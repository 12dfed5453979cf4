--! include heads
-- Leases that a claim exchanges for new ones: the transaction that grants the new tasks first ends those of these leases, and
-- grants nothing unless all of them were still held. So their slots count as free in this claim, and never more tasks run
-- than a cap allows. The old leases stay until the rows have ended; meanwhile no other claim sees room.

-- Shows the queues and gates of the exchanged leases, or hides them again, as their room says.
local function refresh_exchanged(profile)
  for g in pairs(exchanged) do
    local q = string.match(g, '^q:(.*)$')
    if q then refresh_queue(profile, q) elseif g ~= 'a' then refresh_gate(g) end
  end
  refresh_touched()
end

-- Counts leases: arguments id, stamp, id, stamp, ... from the given one on. A lease that is another by now has no slot to give.
local function offer_slots(profile, from)
  for i = from, #ARGV, 2 do
    local address = redis.call('HGET', LEASES, ARGV[i])
    local q = address and split_lane(address)
    local stamp = q and redis.call('ZSCORE', queue_leases_key(q), ARGV[i])
    if stamp and tonumber(stamp) == tonumber(ARGV[i + 1]) then
      exchanged.a = (exchanged.a or 0) + 1
      exchanged['q:' .. q] = (exchanged['q:' .. q] or 0) + 1
      for _, g in ipairs(gates_of(address)) do exchanged[g] = (exchanged[g] or 0) + 1 end
    end
  end
  refresh_exchanged(profile)
end

local function withdraw_slots(profile)
  local offered = exchanged
  exchanged = {}
  for g in pairs(offered) do exchanged[g] = 0 end
  refresh_exchanged(profile)
end
