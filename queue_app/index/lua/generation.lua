-- Tells whether the index may propose work.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- Returns  {number, state}: 'ready', 'rebuilding', or 'missing' (also when of another server run)
--! include keys
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not generation[1] or generation[2] ~= run_id then return { '0', 'missing' } end
return { generation[1], generation[3] }
