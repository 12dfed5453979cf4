-- Returns where a task stands, and the state of the gates that it must pass to start. Writes nothing.
--
-- ARGV[1]  address    ARGV[2]  id
-- Returns  {state of the generation, its number, score in its lane or '', address of its lease or '', owner of turns in its
--          queue: 'user', 'key' or '', tasks of the same owner before it, gate, ...}
--          gate: {name, room or '' for unlimited, instant at which time opens it or '', used slots, cap or '', '1' if
--          paused else '0', throttled until or '' (us by PostgreSQL's clock, as the instant before), starts that a full
--          bucket holds or '', us between two starts or '', id, ...}; the ids are of at most 20 tasks that hold the slots of a
--          gate at its cap
--
-- The gates are those of a claim: everything, the queue, then task type, key and user where they have limits.
--! include lanes
--! include rooms
local HOLDERS = 20
local address, id = address_of(ARGV[1]), ARGV[2]
local q = split_lane(address)
local place, score = find_task(open_places(address), id)
local lane = place and place[1]
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state')
local state = true_state(generation[3]) or 'missing'
if state ~= 'missing' and generation[2] ~= server_run() then state = 'rebuilding' end
local fair, own_ahead = queue_policy(q).fair or '', 0
if fair ~= '' and place then
  own_ahead = redis.call('ZRANK', lane_key(lane), id .. place[2])
  for _, other in ipairs(redis.call('SSCAN', lanes_key(q), '0', 'COUNT', 100)[2]) do
    if other ~= lane and turn_owner(fair, other) == turn_owner(fair, lane) then
      own_ahead = own_ahead + redis.call('ZCOUNT', lane_key(other), '-inf', '(' .. score)
    end
  end
end
local reply = { state, generation[1] or '0', score or '', redis.call('HGET', LEASES, id) or '', fair, own_ahead }

local function text(number) return number and whole(number) or '' end
local function add(name, policy, room, at, used, holders)
  local gate = { name, room < math.huge and text(room) or '', text(at and at + rows_ahead()), used, policy.cap or '',
    policy.paused and '1' or '0', text(policy.throttled), text(policy.burst), text(policy.interval or policy.delay) }
  if policy.cap and used >= tonumber(policy.cap) then
    for _, holder in ipairs(holders()) do gate[#gate + 1] = holder end
  end
  reply[#reply + 1] = gate
end

local everything = global_policy()
add('a', { cap = everything[1] or nil, paused = everything[2] == '1' }, global_room(), nil, redis.call('HLEN', LEASES),
  function() return redis.call('HRANDFIELD', LEASES, HOLDERS) end)
local room, at = queue_room(q)
add('q:' .. q, queue_policy(q), room, at, redis.call('ZCARD', queue_leases_key(q)),
  function() return redis.call('ZRANGE', queue_leases_key(q), 0, HOLDERS - 1) end)
for _, g in ipairs(gates_of(address)) do
  room, at = gate_room(g)
  add(g, gate_policy(g), room, at, redis.call('SCARD', held_key(g)),
    function() return redis.call('SRANDMEMBER', held_key(g), HOLDERS) end)
end
return reply
