--! include limits
-- Where a task waits. Its address names all that limits may ask of it: queue, type, capabilities, user, key and weight. Its
-- lane is shared by all tasks of the queue, type and capabilities that weigh 1, in a fair queue by those of one owner. Each
-- member of a lane is an id, followed by the user and the key that the name of the lane does not give. So a million keys are no
-- more lanes than one.
--
-- A limit of a user or a key opens a further lane for the tasks that it holds back, when a claim or a push meets them: that of
-- the user, the key, or the family of keys, which stands behind the gate and ends when it is empty. Tasks of more weight have a
-- lane for each address: a worker that drains for one reserves its lane.
local FAMILY = '\30'  -- begins the key in the name of a lane that the pause or throttle of a family has opened

local function name_lane(q, task_type, capabilities, user, key, weight)
  local name = q .. '\31' .. task_type .. '\31' .. capabilities
  if user == '' and key == '' and weight == 1 then return name end
  return name .. '\31' .. user .. '\31' .. key .. '\31' .. string.format('%d', weight)
end

-- Callers always name the user; this function drops the user if the queue does not tell its users apart.
local function address_of(given)
  local q, task_type, capabilities, user, key, weight = split_lane(given)
  if user == '' or queue_policy(q).by_user then return given end
  return name_lane(q, task_type, capabilities, '', key, weight)
end

-- The address of a member of a lane, of which `tail` follows the id.
local function address_in(lane, tail)
  if tail == '' then return lane end
  local q, task_type, capabilities, user, key, weight = split_lane(lane)
  local of_user, of_key = string.match(tail, '^([^\31]*)\31([^\31]*)$')
  if user == '' then user = of_user or '' end
  if key == '' or string.sub(key, 1, 1) == FAMILY then key = of_key or tail end
  return name_lane(q, task_type, capabilities, user, key, weight)
end

-- The places of an address, each {lane, tail of its members there, gate that opens it}: the first one without a gate.
local function places(address)
  local q, task_type, capabilities, user, key, weight = split_lane(address)
  if weight ~= 1 or (user == '' and key == '') then return { { address, '' } } end
  local fair = queue_policy(q).fair
  local own_user, own_key = fair == 'user' and user or '', fair == 'key' and key or ''
  local function place(in_user, in_key, g)
    local rest_user, rest_key = in_user == '' and user or '', in_key ~= key and key or ''
    return { name_lane(q, task_type, capabilities, in_user, in_key, 1),
      rest_user ~= '' and rest_user .. '\31' .. rest_key or rest_key, g }
  end
  local found = { place(own_user, own_key) }
  if has_gate_limits() then
    if key ~= '' and own_key == '' then
      local family = family_of('k:' .. key)
      if family then found[2] = place(own_user, FAMILY .. string.sub(family, 3), 'f:' .. string.sub(family, 3)) end
      found[#found + 1] = place(own_user, key, 'k:' .. key)
    end
    if user ~= '' and own_user == '' then found[#found + 1] = place(user, own_key, 'u:' .. q .. '\30' .. user) end
  end
  return found
end

-- The gate that opened a lane, nil for a lane that no limit has opened.
local function opener_of(lane)
  local q, _, _, user, key, weight = split_lane(lane)
  if weight ~= 1 or (user == '' and key == '') then return nil end
  local fair = queue_policy(q).fair
  if key ~= '' and fair ~= 'key' then
    return string.sub(key, 1, 1) == FAMILY and 'f:' .. string.sub(key, 2) or 'k:' .. key
  end
  if user ~= '' and fair ~= 'user' then return 'u:' .. q .. '\30' .. user end
  return nil
end

-- The first place, and the others that have been opened.
local function open_places(address)
  local found = places(address)
  for i = #found, 2, -1 do
    if redis.call('EXISTS', lane_key(found[i][1])) == 0 then table.remove(found, i) end
  end
  return found
end

-- Finds a waiting task: the place, and the score there; nil when it does not wait.
local function find_task(where, id)
  for _, place in ipairs(where) do
    local score = redis.call('ZSCORE', lane_key(place[1]), id .. place[2])
    if score then return place, score end
  end
  return nil
end

-- The set of lanes of a queue, and its types: type -> number of their lanes.
local function count_lane(lane, n)
  local q, task_type = split_lane(lane)
  local left = redis.pcall('HINCRBY', types_key(q), task_type, n)
  if type(left) == 'table' then redis.call('HSET', types_key(q), task_type, '1') end
  if type(left) == 'number' and left <= 0 then redis.call('HDEL', types_key(q), task_type) end
end
local function list_lane(lane)
  local q, task_type = split_lane(lane)
  local is_new = redis.call('SADD', lanes_key(q), lane) == 1
  if is_new or redis.call('HEXISTS', types_key(q), task_type) == 0 then count_lane(lane, 1) end
  redis.call('SADD', QUEUES, q)
  return is_new
end
local function unlist_lane(lane, q)
  if redis.call('SREM', lanes_key(q), lane) == 1 then count_lane(lane, -1) end
end
