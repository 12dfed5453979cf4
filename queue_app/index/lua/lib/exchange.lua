--! include heads
-- Leases that a claim exchanges for new ones: the transaction that grants the new tasks first ends those of these leases, and
-- grants nothing unless all of them were still held. So their slots count as free in this claim, and never more tasks run
-- than a cap allows. The old leases stay until the rows have ended; meanwhile no other claim sees room.

-- Marks the queues and gates of the exchanged leases, so that `refresh_touched` shows or hides them as their room says.
local function touch_exchanged(profile)
  for g in pairs(exchanged) do
    local q = string.match(g, '^q:(.*)$')
    if q then touch(profile, q, '') elseif g ~= 'a' then refresh_gate(g) end
  end
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
  touch_exchanged(profile)
  refresh_touched()
end

-- From here on the exchanged leases count as any other.
local function withdraw_slots(profile)
  touch_exchanged(profile)
  exchanged = {}
end
