-- Returns the generation that the index carries.
--
-- Returns  {number, state}: 'ready', 'rebuilding', or 'missing' (also when it is of another server run)
--! include keys
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state')
if not generation[1] or generation[2] ~= server_run() then return { '0', 'missing' } end
return { generation[1], generation[3] }
